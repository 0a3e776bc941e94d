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
    "'properties':{'name':{'type':'string'},'arguments':{'type':['string','object']}}}}}},"        \
    "'function_call':{'type':['object','null'],'required':['name','arguments'],'properties':{"     \
    "'name':{'type':'string'},'arguments':{'type':'string'}}}"
/* Other roles are accepted if the chat template supports them. */
#define CHAT_MESSAGES                                                                              \
    "'minItems':1,'items':{'anyOf':[{'type':'object','required':['role','content'],'properties':{" \
    "'role':{'enum':['developer','system','user','function']},'content':{'anyOf':[{'type':'"       \
    "string'}," PARTS                                                                              \
    "]}}},{'type':'object','required':['role'],'anyOf':[{'required':['content']},{'required':["    \
    "'tool_calls'],'properties':{'tool_calls':{'type':'array'}}}],'properties':{"                  \
    "'role':{'const':'assistant'},'content':{'anyOf':[{'type':['string','null']}," PARTS           \
    "]}," CHAT_CALLS "}},{'type':'object','required':['role','content','tool_call_id'],"           \
    "'properties':{'role':{'const':'tool'},'content':{'anyOf':[{'type':'string'}," PARTS           \
    "]},'tool_call_id':{'type':'string'}}}]}"
#define ITEMS                                                                                      \
    "'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':{'anyOf':[{'type':'object',"  \
    "'required':['role','content'],'properties':{'type':{'enum':['message',null]},'role':{'enum':" \
    "["                                                                                            \
    "'user','assistant','system','developer']},'content':{'anyOf':[{'type':'string'},{"            \
    "'type':'array','items':" PART "}]}}},"                                                        \
    "{'type':'object','required':['type','call_id','name','arguments'],'properties':{'type':{"     \
    "'const':'function_call'},'call_id':{'type':'string'},'name':{'type':'string'},"               \
    "'arguments':{'type':'string'}}},"                                                             \
    "{'type':'object','required':['type','call_id','output'],'properties':{'type':{"               \
    "'const':'function_call_output'},'call_id':{'type':'string'},'output':{'type':'string'}}},"    \
    "{'type':'object','required':['type','id'],'properties':{'type':{'const':'item_reference'},"   \
    "'id':{'type':'string'}}},"                                                                    \
    "{'type':'object','required':['type','encrypted_content'],'properties':{'type':{'const':"      \
    "'compaction'},'encrypted_content':{'type':'string'}}},"                                       \
    "{'type':'object','required':['type'],'properties':{'type':{'const':'reasoning'}}}]}}]"
#define PREVIOUS_ROLE "'role':{'enum':['user','assistant','system','developer']}"
#define PREVIOUS_REST                                                                              \
    "'recipient':{'type':'null'},'tool_calls':{'type':'null'},'content':{'anyOf':[{'type':"        \
    "'string'},{'type':'array','items':{'type':'object','required':['text'],'properties':{"        \
    "'text':{'type':'string'}}}}]}"
#define PREVIOUS_MESSAGES                                                                          \
    "'items':{'anyOf':[{'type':'object','required':['role','content'],'properties':"               \
    "{" PREVIOUS_ROLE ",'author':{'type':'null'}," PREVIOUS_REST                                   \
    "}},{'type':'object','required':['author','content'],'properties':{'author':{'type':"          \
    "'object','required':['role'],'properties':{" PREVIOUS_ROLE "}}," PREVIOUS_REST "}}]}"
#define FUNCTION                                                                                   \
    "'name':{'type':'string','minLength':1},'description':{'type':['string','null']},"             \
    "'parameters':{'type':['object','null']}"
#define ANY_TOOLS                                                                                  \
    "'maxItems':128,'items':{'type':'object','required':['function'],'properties':{"               \
    "'type':{'enum':['function',null]},'function':{'type':'object','required':['name'],"           \
    "'properties':{" FUNCTION "}}}}"
#define TOOLS "'minItems':1," ANY_TOOLS
#define FLAT_TOOLS                                                                                 \
    "'maxItems':128,'items':{'type':'object','required':['type','name'],'properties':{'type':{"    \
    "'const':'function'}," FUNCTION "}}"
#define SCHEMA_TOOLS                                                                               \
    "'maxItems':128,'items':{'type':'object','required':['name','input_schema'],'properties':{"    \
    "'type':{'enum':['custom',null]},'name':{'type':'string','minLength':1},'description':{"       \
    "'type':['string','null']},"                                                                   \
    "'input_schema':{'type':'object'}}}"
#define TEXT_BLOCK                                                                                 \
    "{'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},'text':{"   \
    "'type':'string'}}}"
#define SYSTEM "'anyOf':[{'type':['string','null']},{'type':'array','items':" TEXT_BLOCK "}]"
#define TURN_OF(roles, blocks)                                                                     \
    "{'type':'object','required':['role','content'],'properties':{'role':{'enum':[" roles          \
    "]},'content':{'anyOf':[{'type':'string'},{'type':'array','items':{'anyOf':"                   \
    "[" TEXT_BLOCK blocks "]}}]}}}"
#define RESULT_BLOCK                                                                               \
    ",{'type':'object','required':['type','tool_use_id'],'properties':{'type':{'const':"           \
    "'tool_result'},'tool_use_id':{'type':'string','minLength':1},'content':{'anyOf':[{'type':"    \
    "['string','null']},{'type':'array','items':" TEXT_BLOCK "}]}}}"
#define ASSISTANT_BLOCKS                                                                           \
    ",{'type':'object','required':['type','id','name','input'],'properties':{'type':{'const':"     \
    "'tool_use'},'id':{'type':'string','minLength':1},'name':{'type':'string','minLength':1},"     \
    "'input':{'type':'object'}}},{'type':'object','required':['type','thinking'],'properties':{"   \
    "'type':{'const':'thinking'},'thinking':{'type':'string'}}},{'type':'object','required':["     \
    "'type','data'],'properties':{'type':{'const':'redacted_thinking'},'data':{'type':'string',"   \
    "'minLength':1}}}"
#define TURNS                                                                                      \
    "'minItems':1,'items':{'anyOf':[" TURN_OF("'user'", RESULT_BLOCK) "," TURN_OF(                 \
        "'assistant'", ASSISTANT_BLOCKS) "," TURN_OF("'system'", "") "]}"
#define FORMAT                                                                                     \
    "'required':['type'],'properties':{'type':{'enum':['text','json_object','json_schema']}}"
#define TEXT_OBJECT                                                                                \
    "{'type':'string','minLength':1},{'type':'object','required':['text'],'properties':{'text':{"  \
    "'type':'string','minLength':1}}}"
#define A_TEXT "'anyOf':[" TEXT_OBJECT "]"
#define TEXT_OR_TEXTS(most)                                                                        \
    "'anyOf':[{'type':'array','minItems':1,'maxItems':" most ",'items':{'anyOf':[" TEXT_OBJECT     \
    "]}}," TEXT_OBJECT ",{'type':'null'}]"
#define TEXTS TEXT_OR_TEXTS("2048")
#define ONE_TEXT TEXT_OR_TEXTS("1")
#define OLLAMA_TOOLS                                                                               \
    "'maxItems':128,'items':{'type':'object','required':['function'],'properties':{'type':{"       \
    "'enum':['function',null]},'function':{'type':'object','required':['name'],'properties':"      \
    "{" FUNCTION "}}}}"
#define OLLAMA_MESSAGES                                                                            \
    "'items':{'type':'object','required':['role'],'properties':{'role':{'enum':['system','user',"  \
    "'assistant','tool']},'content':{'type':['string','null']},'thinking':{'type':['string',"      \
    "'null']},'tool_name':{'type':['string','null']}}}"
/* What a payload may be depends on the type of the action, and most types are ignored. */
#define KV_HINTS                                                                                   \
    "'anyOf':[{'type':'null'},{'type':'object','maxProperties':0},{'type':'object','required':["   \
    "'protocol_version','message_id','actions'],'properties':{'protocol_version':{"                \
    "'type':'string'},'message_id':{'type':'string'},'actions':{'type':'array',"                   \
    "'items':{'type':'object','required':['action_id','action_type','action_version','payload'],"  \
    "'properties':{'action_id':{'type':'string'},'action_type':{'type':'string'},"                 \
    "'action_version':{'type':'string'},'payload':{'type':'object','description':"                 \
    "'Of kv.retain 1.x: scope (a string or null) and directives, at most 128 objects with "        \
    "priority (0 to 100), duration (seconds) and either start and end or covers_output.'}}}}}}]"
/* llama.cpp's logit_bias: a number or false for each text or id. */
#define A_BIAS "{'anyOf':[{'type':'number','minimum':-100,'maximum':100},{'const':false}]}"
#define NATIVE_BIAS                                                                                \
    "'anyOf':[{'type':'null'},{'type':'object','maxProperties':1024,'propertyNames':{'pattern':"   \
    "'^[^0-9]'},'additionalProperties':" A_BIAS                                                    \
    "},{'type':'array','maxItems':1024,'items':{'type':'array','minItems':2,'prefixItems':[{"      \
    "'anyOf':[{'type':'string'},{'$ref':'#/components/schemas/TokenId'}]}," A_BIAS "]}}]"
/* A length that may also be -1 or -2: as much as fits. */
#define LENGTH_OR_ALL                                                                              \
    "'type':['integer','null'],'minimum':-2,'maximum':2147483647,'not':{'const':0}"
#define A_CHOICE "'enum':[null,'none','auto']"

/* Questions with a few answers (decisions.h). */
#define A_QUESTION(type, required, properties)                                                     \
    "{'type':'object','additionalProperties':false,'required':['type'," required                   \
    "],'properties':{'type':{'const':'" type "'},'instructions':{'type':'string'}," properties     \
    "}}"
#define CHOICE_CRITERIA                                                                            \
    "'criteria':{'type':'object','minProperties':1,'maxProperties':26,"                            \
    "'additionalProperties':{'type':['string','null']}}"
#define NOUL_CRITERIA                                                                              \
    "'criteria':{'type':['object','null'],'additionalProperties':false,'properties':{"             \
    "'true':{'type':'string'},'false':{'type':'string'}}}"
#define SCORE_CRITERIA                                                                             \
    "'criteria':{'type':'array','minItems':2,'maxItems':10,'uniqueItems':true,"                    \
    "'items':{'type':'string'}}"
#define CHOICE_QUESTION A_QUESTION("choice", "'criteria'", CHOICE_CRITERIA)
#define NOUL_QUESTION A_QUESTION("noul", "'criteria'", NOUL_CRITERIA)
#define SCORE_QUESTION A_QUESTION("score", "'criteria'", SCORE_CRITERIA)
#define SYSTEMONE_QUESTIONS                                                                        \
    "'minProperties':1,'maxProperties':64,'propertyNames':{'minLength':1},"                        \
    "'additionalProperties':{'anyOf':[" CHOICE_QUESTION "," NOUL_QUESTION "," SCORE_QUESTION "]}"

#define DECISION_CONTENT                                                                           \
    "{'anyOf':[{'type':'string'},{'type':'array','items':{'anyOf':[{'type':'object','required':["  \
    "'type','text'],'properties':{'type':{'enum':['input_text','output_text']},'text':{'type':'"   \
    "string'}}},{'type':'object','required':['type','refusal'],'properties':{'type':{'const':'"    \
    "refusal'},'refusal':{'type':'string'}}},{'type':'object','required':['type','data'],'"        \
    "properties':{'type':{'const':'input_json'},'data':{'type':['object','array']}}}]}}]}"
#define DECISION_CALL(type, text)                                                                  \
    "{'type':'object','required':['type','call_id','name','" text "'],'properties':{'type':{"      \
    "'const':'" type "'},'call_id':{'type':'string'},'name':{'type':'string'},'" text "':{'type':" \
    "'string'}}}"
#define DECISION_INPUT                                                                             \
    "'anyOf':[{'type':'string'},{'type':'array','items':{'anyOf':[{'type':'object','required':["   \
    "'role','content'],'properties':{'type':{'const':'message'},'role':{'enum':['user','"          \
    "assistant','system','developer']},'content':" DECISION_CONTENT                                \
    "}}," DECISION_CALL("function_call", "arguments") "," DECISION_CALL(                           \
        "custom_tool_call", "input") ",{'type':'"                                                  \
                                     "object','"                                                   \
                                     "required':["                                                 \
                                     "'type','call_id','output'],'properties':{'type':{'enum':['"  \
                                     "function_call_output','"                                     \
                                     "custom_tool_call_output']},'call_id':{'type':'string'},'"    \
                                     "output':" DECISION_CONTENT "}}]}}]"
#define QUESTION_NAME "'name':{'type':'string'}"
#define QUESTION_CHOICES                                                                           \
    QUESTION_NAME ",'choices':{'type':'array','minItems':2,'maxItems':26,'uniqueItems':true,"      \
                  "'items':{'type':'object','additionalProperties':false,'required':['value'],'"   \
                  "properties':{"                                                                  \
                  "'value':{'type':['string','boolean']}}}}"
#define QUESTION_LEVELS                                                                            \
    QUESTION_NAME ",'levels':{'type':'array','minItems':2,'maxItems':10,'uniqueItems':true,"       \
                  "'items':{'type':'object','additionalProperties':false,'required':['label'],'"   \
                  "properties':{"                                                                  \
                  "'label':{'type':'string'}}}}"
#define PREDICATE A_QUESTION("predicate", "'instructions'", QUESTION_NAME)
#define LISTED_CHOICE A_QUESTION("choice", "'instructions','choices'", QUESTION_CHOICES)
#define LISTED_SCORE A_QUESTION("score", "'instructions','levels'", QUESTION_LEVELS)
#define DECISION_QUESTIONS                                                                         \
    "'minItems':1,'maxItems':64,'items':{'anyOf':[" PREDICATE "," LISTED_CHOICE "," LISTED_SCORE   \
    "]}"

/* A part of the answer of /inference/v1/generate. */
#define GENERATED                                                                                  \
    "'required':['choices'],'properties':{'choices':{'type':'array','minItems':1,'maxItems':128,"  \
    "'items':{'type':'object','required':['token_ids'],'properties':{'token_ids':{'type':"         \
    "'array','minItems':1,'items':{'$ref':'#/components/schemas/TokenId'}},"                       \
    "'finish_reason':{'type':['string','null'],'pattern':'^[A-Za-z0-9._:-]{1,128}$'}}}}}"
#define TRANSFER                                                                                   \
    "'additionalProperties':{'type':'null'},'properties':{'prompt_token_ids':{'type':['"           \
    "array','null'],'minItems':1,'items':{'$ref':'#/components/schemas/TokenId'}}}"
#define GENERATED_CHUNK                                                                            \
    "'required':['choices'],'properties':{'choices':{'type':'array','maxItems':1,'items':{'type':" \
    "'object','properties':{'token_ids':{'type':['array','null'],'items':{'$ref':"                 \
    "'#/components/schemas/TokenId'}},'finish_reason':{'type':['string','null'],"                  \
    "'pattern':'^[A-Za-z0-9._:-]{1,128}$'},'stop_reason':{'type':['string','integer','null'],"     \
    "'minimum':-9007199254740992,'maximum':9007199254740992}}}}}"

#endif
