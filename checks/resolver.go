package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Resolver resolves names and, unlike package net's, reports which server replied what.
type Resolver struct {
	Servers []string // host:port, in order of preference
	Search  []string // domains without the final dot
	Network string   // "" is udp, and tcp after a truncated reply
}

// candidates lists the absolute names that name may stand for, in the order to ask for them. A name with a dot is first asked
// for as written (with ndots:5, every search domain would cost a query before), but not a service's short name, which the
// internet does not have. The node's own search domains may answer for any name: they are for the diagnosis of a failure.
func (r Resolver) candidates(name string) (names, diagnosis []string) {
	names = []string{strings.TrimSuffix(name, ".") + "."}
	if !strings.HasSuffix(name, ".") {
		domain := r.ClusterDomain()
		for _, search := range r.Search {
			if domain != "" && (search == domain || strings.HasSuffix("."+search, ".svc."+domain)) { // D, svc.D or NS.svc.D
				names = append(names, name+"."+search+".")
			} else {
				diagnosis = append(diagnosis, name+"."+search+".")
			}
		}
		if !strings.Contains(name, ".") || isShortServiceName(name) {
			names = append(names[1:], names[0])
		}
	}
	return names, diagnosis
}

// share returns one of so many parts of the time that an attempt has left.
func share(ctx context.Context, parts int) time.Duration {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline) / time.Duration(parts)
}

// answer is what a name resolves to.
type answer struct {
	addrs  []netip.Addr
	name   string // absolute
	server string // which replied
}

func (a answer) describe(name string) string {
	return fmt.Sprintf("%s is %s", name, a.addrs[0].Unmap())
}

// earlyRule reports whether the addresses of the family that is answered first are enough; else both are awaited.
type earlyRule func([]netip.Addr) bool

func oneFamily([]netip.Addr) bool    { return true }
func bothFamilies([]netip.Addr) bool { return false }

// lookup resolves name. Warnings name the servers that failed before another one answered.
func (r Resolver) lookup(ctx context.Context, name string, isEnough earlyRule) (found answer, warnings []string, err error) {
	failed := &dnsError{name: name, err: errNotName}
	turn := r.turn(ctx)
	names, diagnosis := r.candidates(name)
	for _, candidate := range names {
		found, more, failure := r.resolve(ctx, candidate, turn, isEnough)
		warnings = append(warnings, more...)
		if failure == nil {
			return found, warnings, nil
		}
		switch { // the first that is not negative is reported, else the first
		case errors.Is(failure, errNotName): // nobody was asked
		case errors.Is(failed, errNotName), isNegative(failed) && !isNegative(failure):
			failed = failure
		}
		if ctx.Err() != nil {
			break
		}
		if isNegative(failure) { // the server that answered comes first now: a dead one would cost its turn for every candidate
			others := slices.DeleteFunc(slices.Clone(r.Servers), func(s string) bool { return s == failure.server })
			r.Servers = slices.Insert(others, 0, failure.server)
		}
	}
	for _, candidate := range diagnosis {
		if _, _, failure := r.resolve(ctx, candidate, turn, isEnough); failure == nil {
			failed.fullName = strings.TrimSuffix(candidate, ".")
			break
		}
	}
	return answer{}, nil, &Failure{Cause: failed, sign: r.resolvesOne(names)}
}

// turn returns how long one server has to answer before the next one is asked.
func (r Resolver) turn(ctx context.Context) time.Duration {
	servers := len(r.Servers)
	if servers == 1 {
		return share(ctx, 1) // hedge repeats the queries
	}
	fair := share(ctx, servers)          // each has a turn
	third := share(ctx, max(3, servers)) // if only a packet is lost, the first of two has a second turn
	return min(fair, max(third, pacingOf(ctx).between(30)))
}

// resolvesOne is the sign that one of the servers knows one of the names. After a query without an answer it sends that server
// no other.
func (r Resolver) resolvesOne(names []string) sign {
	signs := make([]sign, len(r.Servers))
	for i, server := range r.Servers {
		signs[i] = briefly(func(ctx context.Context) bool {
			return slices.ContainsFunc(names, func(name string) bool {
				_, err := r.query(ctx, server, name, dnsmessage.TypeA)
				if err != nil && !errors.Is(err, errNXDomain) {
					_, err = r.query(ctx, server, name, dnsmessage.TypeAAAA)
				}
				return err == nil
			})
		})
	}
	return signOfOne(signs)
}

// resolve asks the servers in turn for an absolute name, until one of them answers, or all have failed other than by a timeout,
// or ctx ends. It returns what lookup does.
func (r Resolver) resolve(ctx context.Context, name string, turn time.Duration, isEnough earlyRule) (
	found answer, warnings []string, failure *dnsError) {
	failures := make([]error, len(r.Servers)) // nil: not asked yet
	mayAnswer := func(err error) bool { return err == nil || isTimeout(err) }
	for i := 0; i == 0 || (ctx.Err() == nil && slices.ContainsFunc(failures, mayAnswer)); i++ {
		n := i % len(r.Servers)
		addrs, err := r.ask(ctx, r.Servers[n], name, turn, isEnough)
		switch {
		case err == nil:
			return answer{addrs, name, r.Servers[n]}, r.warnings(name, failures, n), nil
		case isNegative(err):
			return answer{}, r.warnings(name, failures, n), &dnsError{name: name, server: r.Servers[n], err: err}
		// A reply counts more than a timeout of the same server, before it or after it. So does a truncated one.
		case mayAnswer(failures[n]) && !errors.Is(failures[n], errTruncated):
			failures[n] = err
		}
	}
	if len(failures) == 1 {
		return answer{}, nil, &dnsError{name: name, server: r.Servers[0], err: failures[0]}
	}
	var errs []error
	for i, err := range failures {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Servers[i], err))
		}
	}
	return answer{}, nil, &dnsError{name: name, err: join(errs, ", ")}
}

// warnings names the servers that have failed, but not the one that has answered.
func (r Resolver) warnings(name string, failures []error, answered int) (texts []string) {
	for n, err := range failures {
		if err != nil && n != answered {
			texts = append(texts, (&dnsError{name: name, server: r.Servers[n], err: err}).Error())
		}
	}
	return texts
}

// ask asks one server for the A and AAAA records of an absolute name: for both at once, but in a long outage in turn, because
// then no query follows one without an answer.
func (r Resolver) ask(ctx context.Context, server, name string, turn time.Duration, isEnough earlyRule) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	type family struct {
		addrs []netip.Addr
		err   error
	}
	answers := make(chan family, 2)
	query := func(recordType dnsmessage.Type) family {
		addrs, err := r.query(ctx, server, name, recordType)
		return family{addrs, err}
	}
	one, other := dnsmessage.TypeA, dnsmessage.TypeAAAA
	if rand.N(2) == 0 {
		one, other = other, one
	}
	inTurn := func() {
		first := query(one)
		answers <- first
		if isTimeout(first.err) {
			answers <- first // it stands for the other one, too
		} else {
			answers <- query(other)
		}
	}
	if pacingOf(ctx).isLongOutage() {
		go inTurn()
	} else {
		go func() { answers <- query(one) }()
		go func() { answers <- query(other) }()
	}
	first := <-answers
	if first.err == nil && isEnough(first.addrs) {
		return first.addrs, nil
	}
	// Some drop queries for AAAA (RFC 4074, 4.1): half of the time is left for others, unless all depends on this answer.
	if !errors.Is(first.err, errNoData) {
		time.AfterFunc(share(ctx, 2), cancel)
	}
	switch second := <-answers; {
	case first.err == nil || second.err == nil:
		return append(first.addrs, second.addrs...), nil
	// NXDOMAIN is about the name, for any record type (RFC 8020). NODATA of one family says nothing about the other one.
	// A truncated reply says more than no reply.
	case errors.Is(second.err, errNXDomain), errors.Is(first.err, errNoData),
		isTimeout(first.err) && errors.Is(second.err, errTruncated):
		return nil, second.err
	default:
		return nil, first.err
	}
}

// query asks one server for one record type. After a truncated UDP reply it repeats the query over TCP (RFC 7766); an error of
// that wraps errTruncated.
func (r Resolver) query(ctx context.Context, server, name string, recordType dnsmessage.Type) ([]netip.Addr, error) {
	query, err := newQuery(name, recordType, true)
	if err != nil {
		return nil, err
	}
	network := cmp.Or(r.Network, "udp")
	reply, err := exchange(ctx, network, server, query)
	if err == nil && (reply.RCode == dnsmessage.RCodeFormatError || reply.RCode == dnsmessage.RCodeNotImplemented) {
		var plain dnsmessage.Message // an old server does not know EDNS0 (RFC 6891, 7)
		_ = plain.Unpack(query)      // never fails: newQuery packed it
		plain.Additionals = nil
		query, _ = plain.Pack()
		reply, err = exchange(ctx, network, server, query)
	}
	if err == nil && reply.Truncated && network == "udp" {
		if reply, err = exchange(ctx, "tcp", server, query); err != nil {
			err = fmt.Errorf("%w: %w", errTruncated, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return reply.addresses(recordType)
}

// dnsError is why a name does not resolve.
type dnsError struct {
	name     string
	server   string // "" if err names several servers, or none was asked
	err      error  // errNXDomain, timeout, connection refused, …
	fullName string // resolves, but only a search domain of the node itself completes the name to it
}

// withFullName adds the name to configure to remedy, if a search domain of the node completes the name to it.
func withFullName(err error, remedy string) string {
	failed, ok := errors.AsType[*dnsError](err)
	if !ok || failed.fullName == "" {
		return remedy
	}
	return fmt.Sprintf("if you mean %q, configure this full name: the check ignores the node's own search domains, "+
		"because a wildcard there answers any name; else %s", failed.fullName, remedy)
}

func (e *dnsError) Unwrap() error { return e.err }
func (e *dnsError) Error() string {
	text := strings.TrimSuffix(e.name, ".") + ": " + e.err.Error()
	if e.server != "" {
		text += " from name server " + e.server
	}
	return text
}

// IsNXDomain reports whether a server answered that the name does not exist.
func IsNXDomain(err error) bool { return errors.Is(err, errNXDomain) }

// isNegative: a server answered that the name has no address (RFC 2308), or that of a sinkhole.
func isNegative(err error) bool {
	return errors.Is(err, errNXDomain) || errors.Is(err, errNoData) || errors.Is(err, errSinkhole)
}
