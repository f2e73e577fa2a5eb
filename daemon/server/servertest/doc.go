// Package servertest has people and requests for tests of what is served. It is used by tests alone.
package servertest
