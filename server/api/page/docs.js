// SPDX-License-Identifier: Apache-2.0
"use strict";
function el(tag,text,parent){var e=document.createElement(tag);if(text!==undefined)e.textContent=text;if(parent)parent.appendChild(e);return e}
function values(s){
if(s.enum)return s.enum.map(function(v){return JSON.stringify(v)}).join(" | ");
if(s.anyOf)return s.anyOf.map(values).join(" | ");
var t=[].concat(s.type||"any").filter(function(x){return x!=="null"}).join(" | ");
if(t==="array"&&s.items)t="array of "+values(s.items);
if(s.minimum!==undefined)t+=" \u2265 "+s.minimum;
if(s.maximum!==undefined)t+=" \u2264 "+s.maximum;
if(s.maxItems!==undefined)t+=", at most "+s.maxItems;
return t}
function members(doc,ref,parent){
var s=doc.components.schemas[ref.split("/").pop()];
if(s.anyOf&&!s.properties){s.anyOf.forEach(function(x){members(doc,x.$ref,parent)});return}
var table=el("table",undefined,parent);
Object.keys(s.properties).sort().forEach(function(k){
var p=s.properties[k],row=el("tr",undefined,table);
row.className="member";row.dataset.key=k;
el("code",k,el("td",undefined,row));
el("code",values(p)+((s.required||[]).indexOf(k)>=0?" (required)":""),el("td",undefined,row));
el("td",p.description||"",row)})}
function show(doc){
var main=document.getElementById("main");
main.textContent="";
document.getElementById("version").textContent=doc.info.version;
Object.keys(doc.paths).forEach(function(path){Object.keys(doc.paths[path]).forEach(function(method){
var o=doc.paths[path][method],d=el("details",undefined,main),s=el("summary",undefined,d);
d.className="endpoint";
el("b",method.toUpperCase(),s);el("code",path,s);el("span"," "+o.summary+(o.security?" (key)":""),s).className="dim";
if(o.requestBody)members(doc,Object.values(o.requestBody.content)[0].schema.$ref,d)
else el("p","No body.",d).className="dim"})})}
document.getElementById("find").addEventListener("input",function(){
var word=this.value.trim().toLowerCase();
document.querySelectorAll("details").forEach(function(d){
var any=false;
d.querySelectorAll("tr").forEach(function(r){var hit=r.dataset.key.toLowerCase().indexOf(word)>=0;r.hidden=!hit;any=any||hit});
d.hidden=word!==""&&!any;d.open=word!==""&&any})});
fetch("openapi.json").then(function(r){return r.json()}).then(show).catch(function(e){document.getElementById("main").textContent=String(e)});
