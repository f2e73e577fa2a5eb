// Package publish says what a node offers to Kubernetes: it is pure, from a status of gpushared to devices of a ResourceSlice. A device
// that is not published is named with its reason, because a claim may still have it.
//
// What is offered are the grants of one tenant: a whole GPU of a grant of one, a placement of a MIG profile, and the part of a GPU
// that a grant of time or of MPS has, which claims divide. A counter for each memory slice lets the scheduler place instances as
// package mig does.
package publish
