// Package device holds the two device programs that the kernel runs for us at each open of a device node: a wall, which
// lets a cgroup open what is listed and nothing else, and a guard, which denies what is listed but for exceptions.
//
// A program that is attached never changes: its lists are frozen, and another list is another program, attached before
// the old one is detached, so that at no moment fewer rules hold than before or after. Nothing is pinned and nothing is
// remembered: what holds is read back from the cgroup by the program's name. It knows no tenants and no GPUs.
package device
