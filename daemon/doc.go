// Package daemon is the wiring of gpushared: settings, what holds processes on this host, one of each part of the daemon,
// the table of routes, start and end. What the parts do is theirs, in the packages below this one.
package daemon
