// Package specs says which spec is in force, which were before, and what the spec_file of the settings says. It accepts none: package
// change does.
package specs
