package ckptd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
	"unicode"

	v1 "ckptd/v1"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	maxReasonBytes = 64
	maxFacts       = 64
	maxDetailBytes = 256 << 10
	errorInfoURL   = "type.googleapis.com/google.rpc.ErrorInfo"
)

// Error is what all functions here return when they fail. Programs decide by Reason and show
// Message, which is one sentence: doing what, to what, why, what to try.
//
//	var failure *ckptd.Error
//	if errors.As(err, &failure) && failure.Reason == ckptd.ReasonNoMemory { ... }
//
// A call that its context has ended also is context.Canceled or context.DeadlineExceeded for
// errors.Is.
type Error struct {
	Code    codes.Code
	Reason  string // one of the table in proto/README.md, or the code's name
	Message string
	Facts   map[string]string // such as file, tensor, rank
	cause   error
}

func (e *Error) Error() string { return e.Message + " [" + e.Reason + "]" }

func (e *Error) Unwrap() error { return e.cause }

// ReasonOf is the reason of an error of this package, and "" for others.
func ReasonOf(err error) string {
	var failure *Error
	if errors.As(err, &failure) {
		return failure.Reason
	}
	return ""
}

// CodeName is "NOT_FOUND" for codes.NotFound, as in proto/README.md.
func CodeName(code codes.Code) string {
	switch code {
	case codes.OK:
		return "OK"
	case codes.Canceled:
		return "CANCELLED"
	}
	var name strings.Builder
	for i, letter := range code.String() {
		if i > 0 && unicode.IsUpper(letter) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToUpper(letter))
	}
	return name.String()
}

func makeError(code codes.Code, reason, format string, arguments ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: fmt.Sprintf(format, arguments...), Facts: map[string]string{}}
}

func invalid(fact, value, format string, arguments ...any) *Error {
	failure := makeError(codes.InvalidArgument, ReasonInvalidRequest, format, arguments...)
	failure.Facts[fact] = value
	return failure
}

// badReply is the error for an answer that cannot be true.
func badReply(doing, format string, arguments ...any) *Error {
	return makeError(codes.DataLoss, ReasonInvalidReply, "%s: %s; daemon and client do not fit together, update the older one",
		doing, fmt.Sprintf(format, arguments...))
}

// cancelled is the error for a context that has ended.
func cancelled(ctx context.Context, doing string) *Error {
	failure := makeError(codes.Canceled, CodeName(codes.Canceled), "%s: cancelled", doing)
	if failure.cause = ctx.Err(); errors.Is(failure.cause, context.DeadlineExceeded) {
		failure.Code, failure.Reason = codes.DeadlineExceeded, ReasonDeadline
		failure.Message = doing + ": not done in time; allow it more, or look at the daemon's log"
	}
	return failure
}

func isReason(text string) bool {
	valid := func(r rune) bool { return r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' }
	return text != "" && len(text) <= maxReasonBytes && strings.IndexFunc(text, func(r rune) bool { return !valid(r) }) < 0
}

// noThread is gRPC's own answer, which no code of the daemon sees.
const noThread = "Server Threadpool Exhausted"

// infoOf is the ErrorInfo of a status; nil when there is none that can be trusted.
func infoOf(from *status.Status) *v1.ErrorInfo {
	for _, detail := range from.Proto().GetDetails() {
		info := &v1.ErrorInfo{}
		if detail.GetTypeUrl() == errorInfoURL && len(detail.GetValue()) <= maxDetailBytes &&
			proto.Unmarshal(detail.GetValue(), info) == nil && isReason(info.Reason) && len(info.Metadata) <= maxFacts {
			return info
		}
	}
	return nil
}

// translate makes an Error of what gRPC returned.
func (c *Client) translate(ctx context.Context, err error, doing string) *Error {
	from := status.Convert(err)
	if info := infoOf(from); info != nil {
		facts := info.Metadata
		if facts == nil {
			facts = map[string]string{}
		}
		return &Error{Code: from.Code(), Reason: info.Reason, Message: from.Message(), Facts: facts}
	}
	if ctx.Err() != nil {
		return cancelled(ctx, doing)
	}
	failure := makeError(from.Code(), CodeName(from.Code()), "%s: %s", doing, from.Message())
	switch from.Code() {
	case codes.Unavailable:
		return c.lost(doing, from.Message())
	case codes.DeadlineExceeded:
		failure.Reason, failure.cause = ReasonDeadline, context.DeadlineExceeded
		failure.Message = fmt.Sprintf("%s: no answer of the daemon at %s in time; look at its log, or allow more time", doing, c.address)
	case codes.Unimplemented:
		failure.Message = fmt.Sprintf("%s: what listens at %s does not know this call (%s); use the workload socket rank-N.sock "+
			"of a daemon that is as new as this client", doing, c.address, from.Message())
	}
	if from.Message() == noThread {
		failure.Reason = ReasonTooManyWaiting
		failure.Message = fmt.Sprintf("%s: the daemon at %s has as many calls as it serves at once; ask again later", doing, c.address)
	}
	failure.Facts["address"], failure.Facts["chosen_by"] = c.address.Path, c.address.ChosenBy
	return failure
}

// lost is the error for a connection that failed. A plain connection finds out why.
func (c *Client) lost(doing, details string) *Error {
	// EAGAIN: its queue of connections is full.
	if err := probe(c.address); err != nil && !errors.Is(err, syscall.EAGAIN) {
		return unreachable(c.address, err)
	}
	return c.silent(doing, details)
}

func (c *Client) silent(doing, details string) *Error {
	failure := makeError(codes.Unavailable, ReasonDaemonUnreachable, "%s: the daemon at %s listens there and does not answer (%s); "+
		"it is stopped, kept from running or just starting again; see its log and try again", doing, c.address, details)
	failure.Facts["address"], failure.Facts["chosen_by"] = c.address.Path, c.address.ChosenBy
	return failure
}

// sleep returns false when the context has ended before.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func sourceChanged(doing string) *Error {
	return makeError(codes.Aborted, ReasonSourceChanged, "%s: its files have changed between two pages of its tensors; do it again", doing)
}
