// Package instances creates and removes single MIG instances: those that requests wait for, and those that an administrator imports or
// removes. What the spec lays out it leaves alone. It carries out nothing: package change does.
package instances
