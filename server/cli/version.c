// SPDX-License-Identifier: Apache-2.0
/* `sluice version`. */
#include "server/cli/commands.h"

#include <stdio.h>

int cmd_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("sluice " SLUICE_VERSION);
    return 0;
}
