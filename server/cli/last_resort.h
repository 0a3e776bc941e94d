// SPDX-License-Identifier: Apache-2.0
/* The end of a process whose device may hang for ever.
 * Thread: any. */
#ifndef SLUICE_SERVER_CLI_LAST_RESORT_H
#define SLUICE_SERVER_CLI_LAST_RESORT_H

enum { EXIT_DEAD = 2 }; // the engine failed: a supervisor starts the process again

/* After this time the process ends with EXIT_DEAD and a sentence, whichever thread is still
 * waiting. */
void last_resort_begin(unsigned seconds);

#endif
