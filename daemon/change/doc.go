// Package change carries a change from its proposal to its end: a new spec, MIG instances on demand, unmanaging the node, and
// the change that a previous run of the daemon left open. Package planner plans the steps.
package change
