// SPDX-License-Identifier: Apache-2.0
#include "server/cli/last_resort.h"

#include "engine/base/write.h"

#include <signal.h>
#include <unistd.h>

static void on_alarm(int number)
{
    (void)number;
    write_last("sluice: a call to the device does not return; the process exits anyway\n");
    _exit(EXIT_DEAD);
}

void last_resort_begin(unsigned seconds)
{
    const struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds);
}
