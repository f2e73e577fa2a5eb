// Package planner makes plans: from what is wanted, one observation of the node and who uses it, to steps. It is pure: it
// reads no clock, no file and no hardware.
package planner
