package checks

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// A sign looks, with a packet or two, whether what has failed works again. It is no attempt.
type sign func(context.Context) bool

// isOver looks for the sign of an error: that of the whole before those of its parts.
func isOver(ctx context.Context, err error) bool {
	look := outermost(err, func(f *Failure) bool { return f.sign != nil }).sign
	return look != nil && look(ctx)
}

// briefly limits a look at one thing: it ends before TCP repeats a packet (RFC 6298, 2), and before hedge makes another call.
func briefly(look sign) sign {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 900*time.Millisecond)
		defer cancel()
		return look(ctx)
	}
}

// allOver is the sign of errors that must all go away: only when the first has gone it looks at the others, four at a time.
func allOver(errs []error) sign {
	return func(ctx context.Context) bool {
		over := isOver(ctx, errs[0])
		for some := range slices.Chunk(errs[1:], 4) {
			over = over && !slices.Contains(inParallel(some, func(err error) bool { return isOver(ctx, err) }), false)
		}
		return over
	}
}

// oneOver is the sign of errors of which one must go away. It looks for a random four at the same time.
func oneOver(errs []error) sign {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return slices.Contains(inParallel(rand.Perm(len(errs))[:min(len(errs), 4)], func(i int) bool {
			over := isOver(ctx, errs[i])
			if over {
				cancel() // the others
			}
			return over
		}), true)
	}
}

// accepts is the sign that an address accepts connections.
func accepts(address string) sign {
	return briefly(func(ctx context.Context) bool {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}
