// SPDX-License-Identifier: Apache-2.0
/* The table of request members: each row is complete and consistent, so that a mistake in
 * a new row is found here and not by a client. */
#include "server/call/members.h"

#include "test/check.h"

/* A key may mean different things in different bodies, but must have one meaning in each. */
TEST(a_key_has_one_row_in_each_form)
{
    const struct member *m, *other;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        for (size_t k = i + 1; (other = member_at(k)) != NULL; k++) {
            bool same = strcmp(m->key, other->key) == 0;
            CHECK(!same || (m->forms & other->forms) == 0);
        }
    }
}

/* Each row does one thing: it says where a value is stored, who reads it, or why it is refused. */
TEST(rows_are_complete)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        int ways = (m->size > 0) + (m->read != NULL) + (m->with != NULL) + (m->use != MEMBER_READ);
        if (ways != 1 || !m->about || !*m->about || m->forms == 0) {
            CHECK_FAIL("the row of '%s'", m->key);
        }
        CHECK((m->use == MEMBER_REFUSED) == (m->off != NULL));
        CHECK((m->type == MEMBER_CHOICE) == (m->choices != NULL));
        CHECK(!m->flag || m->size > 0);
        CHECK(m->offset + m->size <= sizeof(struct request));
    }
}

/* The reader writes `size` bytes at `offset`, as a bool, a 32-bit number or a word; a row
 * with another width would overwrite neighbours. */
TEST(fields_are_as_wide_as_their_values)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        bool narrow = m->size == sizeof(bool), word = m->size == sizeof(void *);
        if (m->size > 0 && m->type == MEMBER_BOOL) {
            CHECK(narrow);
        } else if (m->size > 0 && m->type == MEMBER_CHOICE) {
            CHECK(narrow || word);
        } else if (m->size > 0) {
            CHECK(word || (m->type != MEMBER_STRING && m->size == 4));
        }
        bool wide = m->size == 4 && m->type == MEMBER_INT;
        CHECK(!wide || m->most > 0 || (m->min >= INT32_MIN && m->max <= INT32_MAX));
    }
}

/* `with` names the member whose reader handles this one, too; it must exist in all the
 * same forms. */
TEST(a_member_is_read_along_with_one_that_is_read)
{
    const struct member *m;
    for (size_t i = 0; (m = member_at(i)) != NULL; i++) {
        if (m->with) {
            const struct member *with = member_find(m->with, m->forms);
            REQUIRE(with && with->read);
        }
    }
    CHECK(!member_find("nonsense", ~0u));
    CHECK(!member_find("messages", FORM_COMPLETIONS));
}

/* The members of vLLM 0.33's requests: one that this server does not know would be ignored, even if
 * it changes the answer. */
TEST(all_members_of_vllm_are_known)
{
    static const struct {
        unsigned form;
        const char *names;
    } rows[] = {
        {FORM_CHAT,
         "add_generation_prompt add_special_tokens allowed_token_ids bad_words "
         "cache_salt chat_template chat_template_kwargs continue_final_message documents "
         "ec_transfer_params echo frequency_penalty ignore_eos include_reasoning "
         "include_stop_str_in_output kv_transfer_params length_penalty logit_bias "
         "logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs "
         "messages min_p min_tokens mm_payload mm_processor_kwargs model n "
         "parallel_tool_calls presence_penalty priority prompt_logprobs reasoning_effort "
         "repetition_detection repetition_penalty request_id response_format "
         "return_mm_kwargs return_prompt_text return_token_ids return_token_offsets "
         "return_tokens_as_token_ids return_weight_versions routed_experts_prompt_start "
         "seed session_id skip_special_tokens spaces_between_special_tokens stop "
         "stop_token_ids stream stream_interval stream_options structured_outputs "
         "temperature thinking_token_budget tool_choice tools top_k top_logprobs top_p "
         "truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs "
         "watermarking"},
        {FORM_CHAT_BATCH,
         "add_generation_prompt best_of cache_salt chat_template chat_template_kwargs "
         "continue_final_message early_stopping echo frequency_penalty "
         "guided_decoding_backend include_reasoning include_stop_str_in_output "
         "length_penalty logit_bias logprob_token_ids logprobs max_completion_tokens "
         "max_tokens media_io_kwargs messages min_p mm_processor_kwargs model n "
         "presence_penalty priority repetition_penalty request_id response_format "
         "return_token_ids return_tokens_as_token_ids seed stop structured_outputs "
         "temperature tool_choice top_k top_logprobs top_p use_beam_search user "
         "watermarking"},
        {FORM_COMPLETIONS,
         "add_special_tokens allowed_token_ids bad_words cache_salt ec_transfer_params "
         "echo frequency_penalty ignore_eos include_stop_str_in_output "
         "kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs "
         "max_tokens min_p min_tokens mm_payload model n presence_penalty priority "
         "prompt prompt_embeds prompt_logprobs repetition_detection repetition_penalty "
         "request_id response_format return_mm_kwargs return_token_ids "
         "return_token_offsets return_tokens_as_token_ids return_weight_versions "
         "routed_experts_prompt_start seed session_id skip_special_tokens "
         "spaces_between_special_tokens stop stop_token_ids stream stream_interval "
         "stream_options structured_outputs suffix temperature thinking_token_budget "
         "top_k top_p truncate_prompt_tokens truncation_side use_beam_search user "
         "vllm_xargs watermarking"},
        {FORM_RESPONSES,
         "background cache_salt chat_template_kwargs ec_transfer_params "
         "enable_response_messages frequency_penalty ignore_eos include "
         "include_reasoning include_stop_str_in_output input instructions "
         "kv_transfer_params logit_bias max_output_tokens max_tool_calls media_io_kwargs "
         "metadata min_p mm_payload mm_processor_kwargs model parallel_tool_calls "
         "presence_penalty previous_input_messages previous_response_id priority prompt "
         "prompt_cache_key prompt_cache_options prompt_cache_retention reasoning "
         "repetition_penalty request_id return_mm_kwargs safety_identifier seed "
         "service_tier session_id skip_special_tokens spaces_between_special_tokens stop "
         "stop_token_ids store stream structured_outputs temperature text tool_choice "
         "tools top_k top_logprobs top_p truncation user vllm_xargs watermarking"},
        {FORM_MESSAGES,
         "cache_salt chat_template_kwargs ec_transfer_params kv_transfer_params "
         "max_tokens messages metadata mm_payload model output_config return_mm_kwargs "
         "stop_sequences stream system temperature thinking tool_choice tools top_k "
         "top_p vllm_xargs watermarking"},
        {FORM_COUNT_TOKENS,
         "chat_template_kwargs messages model output_config system thinking tool_choice "
         "tools"},
        {FORM_EMBEDDINGS, "add_special_tokens cache_salt dimensions embed_dtype encoding_format "
                          "endianness input mm_processor_kwargs model padding priority request_id "
                          "truncate_prompt_tokens truncation_side use_activation user"},
        {FORM_POOLING,
         "add_special_tokens cache_salt dimensions embed_dtype encoding_format "
         "endianness input mm_processor_kwargs model padding priority request_id task "
         "truncate_prompt_tokens truncation_side use_activation user"},
        {FORM_POOL_CHAT,
         "add_generation_prompt add_special_tokens cache_salt chat_template "
         "chat_template_kwargs continue_final_message dimensions embed_dtype "
         "encoding_format endianness media_io_kwargs messages mm_processor_kwargs model "
         "padding priority request_id task truncate_prompt_tokens truncation_side "
         "use_activation user"},
        {FORM_CLASSIFY,
         "add_special_tokens cache_salt input mm_processor_kwargs model padding priority "
         "request_id truncate_prompt_tokens truncation_side use_activation user"},
        {FORM_SCORE, "cache_salt chat_template_kwargs data_1 data_2 documents instruction items "
                     "max_tokens_per_doc max_tokens_per_query mm_processor_kwargs model padding "
                     "priority queries request_id text_1 text_2 truncate_prompt_tokens "
                     "truncation_side use_activation user"},
        {FORM_RERANK,
         "cache_salt chat_template_kwargs documents instruction max_tokens_per_doc "
         "max_tokens_per_query mm_processor_kwargs model padding priority query "
         "request_id top_n truncate_prompt_tokens truncation_side use_activation user"},
        {FORM_LABELS,
         "add_special_tokens apply_softmax cache_salt item_first items label_token_ids "
         "model priority query request_id"},
        {FORM_TOKENIZE_TEXT, "add_special_tokens model prompt return_token_strs"},
        {FORM_TOKENIZE_CHAT,
         "add_generation_prompt add_special_tokens chat_template chat_template_kwargs "
         "continue_final_message media_io_kwargs messages mm_processor_kwargs model "
         "return_token_strs tools"},
        {FORM_DETOKENIZE, "model tokens"},
        {FORM_COHERE_EMBED,
         "embedding_types images input_type inputs max_tokens model output_dimension "
         "priority texts truncate"},
        {FORM_SYSTEMONE,
         "audio cache_salt chat_template_kwargs images instructions joint model priority "
         "questions request_id state videos"},
        {FORM_DECISIONS, "cache_salt input joint model questions safety_identifier"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[64];
        int n;
        for (const char *at = rows[i].names; sscanf(at, "%63s%n", name, &n) == 1; at += n) {
            if (!member_find(name, rows[i].form)) {
                printf("form %#x: %s\n", rows[i].form, name);
                CHECK(false);
            }
        }
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
