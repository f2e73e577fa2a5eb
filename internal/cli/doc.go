// Package cli is the gpushare command line: one file for each noun, text and JSON output, exit codes.
//
// It decides nothing about the node: it asks the daemon through package client and shows the answer.
package cli
