// SPDX-License-Identifier: Apache-2.0
/* The words of formats whose calls are tags that carry names. xml.c parses them, xml_forms.c has
 * one row per format. */
#ifndef SLUICE_SERVER_CHAT_TOOLS_XML_H
#define SLUICE_SERVER_CHAT_TOOLS_XML_H

#include "server/chat/tools/parser.h"

enum { XML_MAX_WORDS = 4, XML_MAX_TYPES = 7 };

struct key_end {
    const char *text;
    enum tool_value type;
};

/* The words of one format. The parser is the same for all of them. */
struct xml_form {
    const char *opens[XML_MAX_WORDS], *closes[XML_MAX_WORDS]; // tags of the outer pair
    const char *inner[XML_MAX_WORDS]; // words that may come between those and a call
    const char *recipient_end;        // follows the recipient's name after opens that end in '='
    const char *call, *name_end, *call_end;
    const char *name_tail; // ends a call's tag if the name is not last in it; otherwise NULL
    const char *key, *value_end;
    struct key_end key_ends[XML_MAX_TYPES];
    bool trim;             // white space before a call is not content
    bool lines;            // one line break before and after a value is not part of it
    const char *cdata_end; // end of a <![CDATA[...]]> value; NULL: not supported
};

/* The step of all of them (struct tool_parser); the parser's form is a struct xml_form. */
bool tool_xml_step(struct tool_parse *p, bool final);

#endif
