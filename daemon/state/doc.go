// Package state is the desired state of the node, the achieved state, and the open change: values and queries on them. It
// plans nothing and changes no hardware.
package state
