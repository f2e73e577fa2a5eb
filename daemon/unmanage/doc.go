// Package unmanage ends the management of a node: it plans the removal of all restrictions, and of MIG instances and modes if asked for,
// from what is active. It accepts and carries out nothing: package change does.
package unmanage
