// Package quota decides who may run on a shared GPU now, and what happens to those who use more GPU memory than granted.
//
// It is pure: times come in with every call, randomness is injected, and what it returns are actions that somebody else
// carries out and reports back. It freezes, signals and measures nothing itself, and knows no cgroup and no driver.
package quota
