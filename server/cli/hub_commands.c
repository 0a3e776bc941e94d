// SPDX-License-Identifier: Apache-2.0
/* `sluice pull`, `sluice list` and `sluice remove`: manage the cache of downloaded models. */
#include "server/cli/commands.h"
#include "server/hub/hub.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const char cache_help[] = "The cache is Hugging Face's: HF_HUB_CACHE, otherwise "
                                 "HF_HOME/hub, otherwise\n~/.cache/huggingface/hub.\n";

static bool wants_help(int argc, char **argv)
{
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

static int fail(const struct err *err)
{
    fprintf(stderr, "sluice: %s\n", err->text);
    return 1;
}

/* Reads the command's only argument, and the settings. False: the command must exit with *rc. */
static bool read_arguments(int argc, char **argv, const char *what, struct hub_name *name,
                           struct hub_settings *settings, int *rc)
{
    struct err err = {""};
    if (wants_help(argc, argv) || argc != 2) {
        *rc = wants_help(argc, argv) ? 0 : 2;
        fprintf(*rc ? stderr : stdout, "usage: sluice %s ORG/NAME[@REVISION]\n\n%s%s", argv[0],
                what, cache_help);
        return false;
    }
    if (!hub_name_read(argv[1], name)) {
        fprintf(stderr,
                "sluice: '%s' is not a model name: expected ORG/NAME or ORG/NAME@REVISION\n",
                argv[1]);
        *rc = 2;
        return false;
    }
    if (hub_settings_read(settings, &err) != OK) {
        *rc = fail(&err);
        return false;
    }
    return true;
}

/* Prints nothing but the folder on standard output, so that scripts can use it. */
int cmd_pull(int argc, char **argv)
{
    static const char what[] =
        "Downloads a model, or the files that are missing, and prints its folder.\n"
        "Gated and private models need HF_TOKEN; HF_ENDPOINT selects another hub.\n";
    struct hub_name name;
    struct hub_settings settings;
    struct err err = {""};
    char folder[PATH_MAX];
    int rc;
    if (!read_arguments(argc, argv, what, &name, &settings, &rc)) {
        return rc;
    }
    if (hub_get(&settings, &name, true, folder, &err) != OK) {
        return fail(&err);
    }
    puts(folder);
    return 0;
}

/* Deletes a model or a revision. Files that other revisions share stay. */
int cmd_remove(int argc, char **argv)
{
    static const char what[] = "Deletes a model from the cache. If a revision is given, only "
                               "deletes that revision and the\n"
                               "files that no other revision uses.\n";
    struct hub_name name;
    struct hub_settings settings;
    struct err err = {""};
    char size[32];
    int64_t freed = 0;
    int rc;
    if (!read_arguments(argc, argv, what, &name, &settings, &rc)) {
        return rc;
    }
    if (hub_remove(&settings, &name, &freed, &err) != OK) {
        return fail(&err);
    }
    printf("%s: %s freed\n", argv[1], hub_size_text(freed, size));
    return 0;
}

/* ---- list ------------------------------------------------------------------------------------ */

/* The header line is printed with the first entry. */
static void print_entry(const struct hub_entry *e, void *arg)
{
    int *n = arg;
    char size[32], used[32];
    const time_t sec = (time_t)e->used_sec;
    struct tm tm;
    const char *revision = e->revision[0] ? e->revision : "-";
    if ((*n)++ == 0) {
        printf("%-48s %-16s %9s  %-10s  %s\n", "MODEL", "REVISION", "SIZE", "STATE", "LAST USE");
    }
    strftime(used, sizeof used, "%Y-%m-%d %H:%M", localtime_r(&sec, &tm));
    printf("%-48s %-16s %9s  %-10s  %s\n", e->id, revision, hub_size_text(e->n_bytes, size),
           e->complete ? "complete" : "incomplete", e->used_sec ? used : "-");
}

/* One line per revision, with its size. */
int cmd_list(int argc, char **argv)
{
    struct hub_settings settings;
    struct err err = {""};
    int n = 0;
    if (argc > 1) {
        const bool help = wants_help(argc, argv);
        fprintf(help ? stdout : stderr, "usage: sluice list\n\nShows the models in the cache.\n%s",
                cache_help);
        return help ? 0 : 2;
    }
    if (hub_settings_read(&settings, &err) != OK ||
        hub_list(&settings, print_entry, &n, &err) != OK) {
        return fail(&err);
    }
    if (n == 0) {
        printf("there are no models in %s; 'sluice pull ORG/NAME' downloads one\n", settings.cache);
    }
    return 0;
}
