// Package control restarts, drains and resumes MPS on single GPUs, as administrators request. What the spec asks for is carried out
// by packages change and converge.
package control
