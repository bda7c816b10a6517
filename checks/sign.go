package checks

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"
)

// A sign looks, with a packet or two, whether the next attempt would pass. It is no attempt: it decides nothing but when the
// next one begins. A Failure carries the sign of what has failed: the code that makes a connection or a query knows how to look
// again, and the code that combines several failures knows whether all of them must be over (join), or one (signOfOne).
type sign func(context.Context) bool

// signOf returns the sign of an error: the sign of the whole, else the sign of its cause. Without any, it never comes.
func signOf(err error) sign {
	for f, found := errors.AsType[*Failure](err); found; f, found = errors.AsType[*Failure](f.Cause) {
		if f.sign != nil {
			return f.sign
		}
	}
	return func(context.Context) bool { return false }
}

func signsOf(errs []error) []sign {
	signs := make([]sign, len(errs))
	for i, err := range errs {
		signs[i] = signOf(err)
	}
	return signs
}

// signOfAll comes when each of the signs comes. It looks for the others only after the first has come.
func signOfAll(signs []sign) sign {
	return func(ctx context.Context) bool {
		return signs[0](ctx) && !slices.Contains(inParallel(signs[1:], func(look sign) bool { return look(ctx) }), false)
	}
}

// signOfOne comes when one of the signs comes. It looks for a random four at the same time.
func signOfOne(signs []sign) sign {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		four := rand.Perm(len(signs))[:min(len(signs), 4)]
		return slices.Contains(inParallel(four, func(i int) bool {
			came := signs[i](ctx)
			if came {
				cancel() // the others
			}
			return came
		}), true)
	}
}

// briefly limits a look at one thing: it ends before TCP repeats a packet (RFC 6298, 2), and before hedge makes another call.
func briefly(look sign) sign {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, 900*time.Millisecond)
		defer cancel()
		return look(ctx)
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
