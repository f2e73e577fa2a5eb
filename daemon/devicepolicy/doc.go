// Package devicepolicy says which device may be opened by whom: the rules of slices and leases, the login filter, and what
// container runtimes are told. The steps that put rules in force are planned and carried out elsewhere.
package devicepolicy
