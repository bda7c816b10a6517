// Command workload is the pause container of the throwaway cluster, the init of its sandboxes, and a pod for tests to run. It has no
// dependency and is one static file.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const usage = `usage: workload [COMMAND]
  sleep                    until SIGTERM (the default); as process 1 it also reaps orphans
  serve [NET/]ADDRESS...   reply to every TCP connection and UDP packet with the host name, e.g. serve :80 udp/:53
  require NAME ADDRESS...  resolve NAME, exit 1 when it has no address; then serve
  resolve NAME...          resolve each name with the Go resolver; exit 1 when one has no address
  dial ADDRESS...          open a TCP connection to each; exit 1 when one cannot be opened
Lookups and dials give up after TIMEOUT (a duration, from the environment; default 3s).
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	// First of all: process 1 without a handler ignores SIGTERM.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)

	command := "sleep"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	timeout := 3 * time.Second
	if text := os.Getenv("TIMEOUT"); text != "" {
		var err error
		if timeout, err = time.ParseDuration(text); err != nil {
			fmt.Fprintf(stderr, "workload: TIMEOUT must be a duration like 3s: %v\n", err)
			return 2
		}
	}

	switch command {
	case "sleep":
		go reap()
		<-stop
		return 0
	case "require":
		if code := each(args[:min(1, len(args))], timeout, stdout, resolve); code != 0 {
			return code
		}
		args = args[min(1, len(args)):]
		fallthrough
	case "serve":
		for _, where := range args {
			if err := serve(where); err != nil {
				fmt.Fprintf(stderr, "workload: %v\n", err)
				return 1
			}
		}
		<-stop
		return 0
	case "resolve":
		return each(args, timeout, stdout, resolve)
	case "dial":
		return each(args, timeout, stdout, func(ctx context.Context, address string) (string, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			return conn.LocalAddr().String() + " -> " + conn.RemoteAddr().String(), nil
		})
	default:
		fmt.Fprint(stderr, usage)
		return 2
	}
}

// reap waits for orphans, which process 1 inherits; without it they stay zombies.
func reap() {
	children := make(chan os.Signal, 16)
	signal.Notify(children, syscall.SIGCHLD)
	for {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if pid <= 0 {
				break
			}
		}
		<-children
	}
}

func resolve(ctx context.Context, name string) (string, error) {
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	return strings.Join(addresses, " "), err
}

func serve(where string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	network, address, found := strings.Cut(where, "/")
	if !found {
		network, address = "tcp", where
	}
	if strings.HasPrefix(network, "udp") {
		packets, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		go func() {
			for buffer := make([]byte, 1500); ; {
				_, from, err := packets.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo([]byte(host+"\n"), from)
			}
		}()
		return nil
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, host)
			_ = conn.Close()
		}
	}()
	return nil
}

func each(args []string, timeout time.Duration, stdout io.Writer, do func(context.Context, string) (string, error)) int {
	lines, failed := make([]string, len(args)), make([]bool, len(args))
	var wg sync.WaitGroup
	for i, arg := range args {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			defer cancel()
			began := time.Now()
			result, err := do(ctx, arg)
			if err != nil {
				result, failed[i] = "FAILED: "+err.Error(), true
			}
			lines[i] = fmt.Sprintf("%s: %s (%d ms)", arg, result, time.Since(began).Milliseconds())
		})
	}
	wg.Wait()
	code := 0
	for i, line := range lines {
		fmt.Fprintln(stdout, line)
		if failed[i] {
			code = 1
		}
	}
	return code
}
