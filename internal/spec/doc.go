// Package spec turns the text of a node's spec into values and back: strict decoding with file, line, column and path
// of everything that is wrong, resolution of selectors against the GPUs that are there, and a canonical text.
//
// It plans nothing and asks no hardware: whether a layout fits a device is for package mig and the daemon.
package spec
