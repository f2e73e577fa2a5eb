// Package cli is the gpushare command line: one file for each noun, text and JSON output, exit codes.
//
// It makes no decisions about the node: it sends requests to the daemon through package client and prints the answers.
package cli
