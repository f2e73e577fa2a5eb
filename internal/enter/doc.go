// Package enter is gpushare run where nothing has to be said: it requests a lease over the socket and becomes the command in it. All
// else it leaves to the command line, another program, which continues the same request.
//
// A command waits for the start of what requests its lease, and every package that is linked adds to that: this one uses system calls
// and no package net, net/http, cobra or yaml. It never waits for anything but the daemon's answer, and a signal ends it as any program.
package enter
