// SPDX-License-Identifier: Apache-2.0
/* Built-in chat templates, selected by name. */
#include "server/chat/template.h"

#include <string.h>

#define SYSTEM                                                                                     \
    "{%- set system = '' -%}{%- set turns = messages -%}"                                          \
    "{%- if messages and messages[0].role == 'system' -%}"                                         \
    "{%- set system = messages[0].content -%}{%- set turns = messages[1:] -%}{%- endif -%}"

static const struct {
    const char *name, *text;
} templates[] = {
    {"chatml",
     "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
     "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"},
    {"command-r",
     "{{ bos_token }}{%- set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} "
     "-%}{%- for m in messages -%}{{ '<|START_OF_TURN_TOKEN|><|' + names[m.role] + '_TOKEN|>' + "
     "m.content | trim + '<|END_OF_TURN_TOKEN|>' }}{%- endfor -%}{%- if add_generation_prompt -%}"
     "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif -%}"},
    {"gemma",
     "{{ bos_token }}" SYSTEM "{%- if system -%}{%- set system = system | trim + '\n\n' -%}"
     "{%- endif -%}{%- for m in turns -%}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' "
     "else m.role) + '\n' + (system if loop.first else '') + m.content | trim + "
     "'<end_of_turn>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}"
     "{{ '<start_of_turn>model\n' }}{%- endif -%}"},
    {"llama2", SYSTEM
     "{%- if system -%}{%- set system = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' -%}{%- endif -%}"
     "{%- for m in turns -%}{%- if m.role == 'user' -%}{{ bos_token + '[INST] ' + (system if "
     "loop.first else '') + m.content | trim + ' [/INST]' }}{%- else -%}"
     "{{ ' ' + m.content | trim + ' ' + eos_token }}{%- endif -%}{%- endfor -%}"},
    {"llama3",
     "{{ bos_token }}{%- for m in messages -%}{{ '<|start_header_id|>' + m.role + "
     "'<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
     "{%- endif -%}"},
    {"phi3", "{%- for m in messages -%}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}"
             "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}"},
    {"phi4", "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + "
             "'<|im_end|>' }}{%- endfor -%}{%- if add_generation_prompt -%}"
             "{{ '<|im_start|>assistant<|im_sep|>' }}{%- endif -%}"},
    {"zephyr",
     "{%- for m in messages -%}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
     "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}"},
};

const char *chat_template_named(const char *name)
{
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++) {
        if (strcmp(templates[i].name, name) == 0) {
            return templates[i].text;
        }
    }
    return NULL;
}
