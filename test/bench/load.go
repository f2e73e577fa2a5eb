package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var statusRequest = []byte("GET /v1/status HTTP/1.1\r\nHost: gpushare\r\n\r\n")

// conn is one keep-alive connection. It parses only the necessary part of HTTP, because it shares the cores with the daemon.
type conn struct {
	c net.Conn
	r *bufio.Reader
}

func dial(ctx context.Context, socket string) (*conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the daemon: %w", err)
	}
	return &conn{c, bufio.NewReaderSize(c, 64<<10)}, nil
}

// roundTrip sends one request and reads its whole answer.
func (c *conn) roundTrip() error {
	if _, err := c.c.Write(statusRequest); err != nil {
		return fmt.Errorf("cannot send: %w", err)
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("cannot read: %w", err)
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		return fmt.Errorf("the daemon answered %q", line)
	}
	length := -1
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("cannot read: %w", err)
		}
		if len(line) == 2 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
				return fmt.Errorf("cannot read the length: %w", err)
			}
		}
	}
	if length < 0 {
		return errors.New("the answer has no length")
	}
	_, err = io.CopyN(io.Discard, c.r, int64(length))
	return err
}

type openResult struct {
	p99  time.Duration
	rate float64
}

// openLoop sends requests at fixed times, independent of the answers. The latency counts from the time when a request is due.
func openLoop(ctx context.Context, socket string, conns, perSecond int, duration time.Duration) (openResult, error) {
	ctx, cancel := context.WithTimeout(ctx, duration+10*time.Second)
	defer cancel()
	every := time.Duration(conns) * time.Second / time.Duration(perSecond)
	durations := make([][]time.Duration, conns)
	errs := make([]error, conns)
	var wg sync.WaitGroup
	began := time.Now().Add(50 * time.Millisecond)
	for i := range conns {
		c, err := dial(ctx, socket)
		if err != nil {
			return openResult{}, err
		}
		defer c.c.Close()
		wg.Go(func() {
			due := began.Add(every * time.Duration(i) / time.Duration(conns))
			for ; due.Before(began.Add(duration)) && ctx.Err() == nil; due = due.Add(every) {
				if d := time.Until(due); d > 0 {
					time.Sleep(d) // The request is due at this time.
				}
				if errs[i] = c.roundTrip(); errs[i] != nil {
					return
				}
				durations[i] = append(durations[i], time.Since(due))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(durations...)
	if err := errors.Join(errs...); err != nil || len(all) == 0 {
		return openResult{}, fmt.Errorf("the open loop failed: %w", err)
	}
	elapsed := time.Since(began)
	slices.Sort(all)
	return openResult{all[len(all)*99/100], float64(len(all)) / elapsed.Seconds()}, nil
}

// closedLoop sends the next request after the answer to the last.
func closedLoop(ctx context.Context, socket string, conns int, duration time.Duration) (float64, error) {
	var done atomic.Int64
	errs := make([]error, conns)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range conns {
		c, err := dial(ctx, socket)
		if err != nil {
			return 0, err
		}
		defer c.c.Close()
		wg.Go(func() {
			for time.Since(began) < duration && ctx.Err() == nil {
				if errs[i] = c.roundTrip(); errs[i] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("the closed loop failed: %w", err)
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}
