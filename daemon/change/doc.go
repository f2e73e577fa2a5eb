// Package change carries a change from its proposal to its end: of a spec, of one GPU, of what a boot removed, and of what other packages
// plan. Only a recorded change has authority.
package change
