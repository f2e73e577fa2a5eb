// Package servertest has users and requests for tests of the API. Only tests use it.
package servertest
