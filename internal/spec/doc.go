// Package spec turns the text of a node's spec into values and back: strict decoding with file, line, column and path
// of every mistake, resolution of selectors against the present GPUs, and a canonical text.
//
// It plans nothing and reads no hardware: package mig and the daemon decide whether a layout fits a device.
package spec
