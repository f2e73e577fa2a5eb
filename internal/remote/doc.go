// Package remote runs a command on other hosts with ssh of this one, whose configuration holds. It knows no command, and what hosts answer
// is neither read nor trusted here: it has a bound and a deadline.
package remote
