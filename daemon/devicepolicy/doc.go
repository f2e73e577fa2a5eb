// Package devicepolicy decides which devices may be opened: the device rules of slices and leases, the login filters, and
// the CDI files for container runtimes. The steps that set device rules are planned and carried out in other packages.
package devicepolicy
