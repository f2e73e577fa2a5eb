// Package mpstest has the commands and answers of the MPS control program in each branch of the driver. The tests of the
// stand-in and those of the real programs run the same table, without a GPU. It runs nothing itself.
package mpstest
