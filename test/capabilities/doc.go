// Package capabilities measures what each capability of gpushared.service is for. Each privileged act of the daemon runs with the
// capabilities of the unit, and with these without one of them.
package capabilities
