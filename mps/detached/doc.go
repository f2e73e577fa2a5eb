// Package detached runs services without a service manager: processes in sessions of their own that do not end with their starter and
// are found again by their records. It restarts no service, and knows nothing of MPS but what a service of it is.
package detached
