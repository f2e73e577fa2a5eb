// Package planner plans steps from the desired state, one observation of the node and its current use. It is pure: it reads
// no clock, no file and no hardware.
package planner
