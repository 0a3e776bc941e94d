// SPDX-License-Identifier: Apache-2.0
/* Ends a process whose device may hang forever.
 * Thread: any. */
#ifndef SLUICE_SERVER_CLI_LAST_RESORT_H
#define SLUICE_SERVER_CLI_LAST_RESORT_H

enum { EXIT_DEAD = 2 }; // the engine failed: a supervisor should restart the process

/* After this time the process exits with EXIT_DEAD and a message, even if one of its threads
 * hangs. */
void last_resort_begin(unsigned seconds);

#endif
