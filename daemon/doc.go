// Package daemon wires gpushared: settings, the adapters of the host, one of each manager, the table of routes, start and
// stop. The managers are in the packages below this one.
package daemon
