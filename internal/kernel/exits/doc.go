// Package exits reports how processes end that are not children of this one: the command of 'gpushare run' is a child of the
// user's shell.
//
// The kernel reports it to root, through its process connector (Documentation/driver-api/connector.rst, CONFIG_PROC_EVENTS).
// A filter in the kernel drops everything but the ends of the followed processes, so that a host that starts many others does not
// wake the daemon at all.
package exits
