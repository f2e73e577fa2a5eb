//go:build cgo

package main

import "C" // slack.c
