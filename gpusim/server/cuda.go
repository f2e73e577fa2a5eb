package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/gpushare/gpushare/gpusim"
)

// maxLine bounds a line of the context protocol.
const maxLine = 1024

// cuda serves one context: one connection, text lines, one answer each. The context ends with the connection.
//
//	CTX gpu=<GPU-uuid|MIG-uuid|ordinal> mps=<pipe dir|-> mpspid=<pid|0> limit=<bytes|0> [share=<percent>]
//	    OK <minor> <GI capability minor|-> <CI capability minor|->
//	ALLOC <bytes>, MANAGED <bytes>, FREE <bytes>, QUEUE <kernels>, LAUNCH <µs> <kernels>, SYNC
//	    OK
//
// or, for each of them, ERR <CUDA error number> <text>. LAUNCH is answered when all kernels are in the queue.
func (s *Server) cuda(ctx context.Context, conn *net.UnixConn) {
	cred, err := peer(conn)
	if err != nil {
		s.log.Error("context connection refused", "error", err)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan string)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer cancel()
		in := bufio.NewScanner(conn)
		in.Buffer(make([]byte, maxLine), maxLine)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	c := &cudaConn{node: s.node, pid: int(cred.Pid)}
	defer c.close()
	for {
		select {
		case line := <-lines:
			answer, err := c.do(ctx, line)
			if err != nil {
				answer = refusal(err)
			}
			if _, err := fmt.Fprintln(conn, answer); err != nil {
				_ = conn.Close()
				return
			}
		case <-ctx.Done():
			_ = conn.Close()
			return
		}
	}
}

func refusal(err error) string {
	var cuda *gpusim.CUDAError
	if errors.As(err, &cuda) {
		return fmt.Sprintf("ERR %d %s", cuda.Code, cuda.Text)
	}
	return "ERR 999 " + err.Error()
}

// cudaConn is the state of one connection.
type cudaConn struct {
	node    *gpusim.Node
	pid     int
	context *gpusim.Context
}

func (c *cudaConn) close() {
	if c.context != nil {
		c.context.Close()
	}
}

var errProtocol = &gpusim.CUDAError{Code: 1, Text: "invalid request"}

func (c *cudaConn) do(ctx context.Context, line string) (string, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", errProtocol
	}
	if words[0] == "CTX" {
		return c.open(words[1:])
	}
	if c.context == nil {
		return "", &gpusim.CUDAError{Code: 201, Text: "invalid device context"}
	}
	numbers := make([]uint64, len(words)-1)
	for i, w := range words[1:] {
		v, err := strconv.ParseUint(w, 10, 63)
		if err != nil {
			return "", errProtocol
		}
		numbers[i] = v
	}
	switch {
	case words[0] == "ALLOC" && len(numbers) == 1:
		return "OK", c.context.Alloc(numbers[0])
	case words[0] == "MANAGED" && len(numbers) == 1:
		return "OK", c.context.AllocManaged(numbers[0])
	case words[0] == "FREE" && len(numbers) == 1:
		return "OK", c.context.Free(numbers[0])
	case words[0] == "QUEUE" && len(numbers) == 1 && numbers[0] > 0 && numbers[0] <= math.MaxInt32:
		c.context.SetQueue(int(numbers[0]))
		return "OK", nil
	case words[0] == "LAUNCH" && len(numbers) == 2 && numbers[0] < 1e12 && numbers[1] <= math.MaxInt32:
		return "OK", c.context.Launch(ctx, time.Duration(numbers[0])*time.Microsecond, int(numbers[1]))
	case words[0] == "SYNC" && len(numbers) == 0:
		return "OK", c.context.Sync(ctx)
	}
	return "", errProtocol
}

func (c *cudaConn) open(words []string) (string, error) {
	if c.context != nil {
		return "", errProtocol
	}
	spec := gpusim.ContextSpec{PID: c.pid}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		var err error
		switch key {
		case "gpu":
			spec.Device = value
		case "mps":
			if value != "-" {
				spec.MPS = value
			}
		case "mpspid":
			spec.Server, err = strconv.Atoi(value)
		case "limit":
			spec.Limit, err = strconv.ParseUint(value, 10, 63)
		case "share":
			spec.Share, err = strconv.ParseFloat(value, 64)
		default:
			err = errProtocol
		}
		if err != nil {
			return "", errProtocol
		}
	}
	var err error
	if c.context, err = c.node.OpenContext(spec); err != nil {
		return "", err
	}
	d := c.context.Devices()
	name := func(minor int) string {
		if minor < 0 {
			return "-"
		}
		return strconv.Itoa(minor)
	}
	return fmt.Sprintf("OK %d %s %s", d.Minor, name(d.GI), name(d.CI)), nil
}
