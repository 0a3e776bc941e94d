// SPDX-License-Identifier: Apache-2.0
/* Pieces of JSON schemas of request members, for the tables in members_*.c and, through them,
 * /openapi.json; ' stands for the quotation mark. */
#ifndef SLUICE_SERVER_CALL_MEMBERS_SCHEMAS_H
#define SLUICE_SERVER_CALL_MEMBERS_SCHEMAS_H

#define PART                                                                                       \
    "{'type':'object','required':['type','text'],'properties':{'type':{'enum':['text',"            \
    "'input_text','output_text']},'text':{'type':'string'}}}"
#define PARTS "{'type':'array','items':" PART "}"
#define CHAT_CALLS                                                                                 \
    "'tool_calls':{'type':['array','null'],'items':{'type':'object','required':['function'],'"     \
    "properties':{"                                                                                \
    "'function':{'type':'object','required':['name','arguments'],"                                 \
    "'properties':{'name':{'type':'string'},'arguments':{'type':['string','object']}}}}}}"
/* Other roles are accepted if the chat template supports them. */
#define CHAT_MESSAGES                                                                              \
    "'minItems':1,'items':{'anyOf':[{'type':'object','required':['role','content'],'properties':{" \
    "'role':{'enum':['developer','system','user']},'content':{'anyOf':[{'type':'string'}," PARTS   \
    "]}}},{'type':'object','required':['role'],'properties':{"                                     \
    "'role':{'const':'assistant'},'content':{'anyOf':[{'type':['string','null']}," PARTS           \
    "]}," CHAT_CALLS "}},{'type':'object','required':['role','content','tool_call_id'],"           \
    "'properties':{'role':{'const':'tool'},'content':{'anyOf':[{'type':'string'}," PARTS           \
    "]},'tool_call_id':{'type':'string'}}}]}"
#define ITEMS                                                                                      \
    "'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':{'anyOf':[{'type':'object',"  \
    "'required':['role','content'],'properties':{'type':{'const':'message'},'role':{'enum':["      \
    "'user','assistant','system','developer']},'content':{'anyOf':[{'type':'string'},{"            \
    "'type':'array','items':" PART "}]}}},"                                                        \
    "{'type':'object','required':['type'],'properties':{'type':{"                                  \
    "'enum':['function_call','function_call_output','reasoning']}}}]}}]"
#define FUNCTION                                                                                   \
    "'name':{'type':'string','minLength':1},'description':{'type':'string'},'parameters':{'type':" \
    "'object'}"
#define TOOLS                                                                                      \
    "'minItems':1,'maxItems':128,'items':{'type':'object','required':['function'],'properties':{"  \
    "'type':{'const':'function'},'function':{'type':'object','required':['name'],'properties':"    \
    "{" FUNCTION "}}}}"
#define FLAT_TOOLS                                                                                 \
    "'maxItems':128,'items':{'type':'object','required':['type','name'],'properties':{'type':{"    \
    "'const':'function'}," FUNCTION "}}"
#define SCHEMA_TOOLS                                                                               \
    "'maxItems':128,'items':{'type':'object','required':['name','input_schema'],'properties':{"    \
    "'type':{'const':'custom'},'name':{'type':'string'},'description':{'type':'string'},"          \
    "'input_schema':{'type':'object'}}}"
#define TEXT_BLOCK                                                                                 \
    "{'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},'text':{"   \
    "'type':'string'}}}"
#define SYSTEM "'anyOf':[{'type':['string','null']},{'type':'array','items':" TEXT_BLOCK "}]"
#define TURNS                                                                                      \
    "'minItems':1,'items':{'type':'object','required':['role','content'],'properties':{'role':{"   \
    "'enum':['user','assistant','system']},'content':{'anyOf':[{'type':'string'},{'type':"         \
    "'array','items':{'anyOf':[" TEXT_BLOCK ",{'type':'object','required':['type'],'properties':{" \
    "'type':{'enum':['tool_use','tool_result','thinking','redacted_thinking']}}}]}}]}}}"
#define FORMAT                                                                                     \
    "'required':['type'],'properties':{'type':{'enum':['text','json_object','json_schema']}}"
#define TEXT_OBJECT                                                                                \
    "{'type':'string','minLength':1},{'type':'object','required':['text'],'properties':{'text':{"  \
    "'type':'string'}}}"
#define A_TEXT "'anyOf':[" TEXT_OBJECT "]"
#define TEXTS                                                                                      \
    "'anyOf':[{'type':'array','minItems':1,'maxItems':2048,'items':{'anyOf':[" TEXT_OBJECT         \
    "]}}," TEXT_OBJECT ",{'type':'null'}]"
#define OLLAMA_TOOLS                                                                               \
    "'maxItems':128,'items':{'type':'object','required':['function'],'properties':{'type':{"       \
    "'const':'function'},'function':{'type':'object','required':['name'],'properties':{" FUNCTION  \
    "}}}}"
#define OLLAMA_MESSAGES                                                                            \
    "'items':{'type':'object','required':['role'],'properties':{'role':{'enum':['system','user',"  \
    "'assistant','tool']},'content':{'type':['string','null']},'thinking':{'type':['string',"      \
    "'null']},'tool_name':{'type':'string'}}}"
#define DIRECTIVE                                                                                  \
    "{'type':'object','required':['priority'],'additionalProperties':false,'properties':{"         \
    "'priority':{'type':'integer','minimum':0,'maximum':100},'duration':{'type':['number',"        \
    "'null'],'minimum':0,'maximum':2592000},'start':{'type':'integer','minimum':0},'end':{"        \
    "'type':['integer','null'],'minimum':1},'covers_output':{'type':'boolean'}}}"
#define KV_HINTS                                                                                   \
    "'anyOf':[{'type':'null'},{'type':'object','maxProperties':0},{'type':'object','required':["   \
    "'protocol_version','message_id','actions'],'properties':{'protocol_version':{"                \
    "'type':'string'},'message_id':{'type':'string'},'actions':{'type':'array','maxItems':16,"     \
    "'items':{'type':'object','required':['action_id','action_type','action_version','payload'],"  \
    "'properties':{'action_id':{'type':'string'},'action_type':{'type':'string'},"                 \
    "'action_version':{'type':'string'},'payload':{'type':'object','properties':{'scope':{"        \
    "'type':['string','null']},'directives':{'type':'array','maxItems':128,'items':" DIRECTIVE     \
    "}}}}}}}}]"
#define A_CHOICE "'enum':[null,'none','auto']"

/* A part of what /inference/v1/generate answers. */
#define GENERATED                                                                                  \
    "'required':['choices'],'properties':{'choices':{'type':'array','minItems':1,'maxItems':128,"  \
    "'items':{'type':'object','required':['token_ids'],'properties':{'token_ids':{'type':"         \
    "'array','minItems':1,'maxItems':64,'items':{'type':'integer','minimum':0,'maximum':99}},"     \
    "'finish_reason':{'type':['string','null']}}}}}"

#endif
