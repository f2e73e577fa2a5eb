// The threads of the worker inherit the timer slack of the first one, and the monitor thread of the Go runtime exists before main: see
// package internal/monitor, which has the same value. A call of the driver counts as a system call: without this the monitor wakes up
// every 20 us until it returns, and gives the processor of the program away and back.
#include <sys/prctl.h>

__attribute__((constructor)) static void relax(void) { prctl(PR_SET_TIMERSLACK, 500000UL, 0UL, 0UL, 0UL); }
