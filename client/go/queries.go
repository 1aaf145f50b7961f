package ckptd

import (
	"context"
	"time"

	v1 "ckptd/v1"
)

// paged calls `next` with the token of each page until there is none. All pages together have the
// time of one call.
func paged(ctx context.Context, c *Client, token, doing string, next func(ctx context.Context, token string) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.CallTimeout)
	defer cancel()
	for pages := 0; token != ""; pages++ {
		if pages == maxPages {
			return badReply(doing, "its pages do not end")
		}
		var err error
		if token, err = next(ctx, token); err != nil {
			return err
		}
	}
	return nil
}

// Get is the checkpoint as it is now.
func (c *Client) Get(ctx context.Context, name string) (*v1.Checkpoint, error) {
	answer, err := call(ctx, c, c.options.CallTimeout, c.service.GetCheckpoint, &v1.GetCheckpointRequest{Name: name}, "looking up "+name)
	return answer.GetCheckpoint(), err
}

// List is all that the daemon holds, newest first, and whose shards these are.
func (c *Client) List(ctx context.Context) (*v1.ListCheckpointsResponse, error) {
	doing, request := "listing checkpoints", &v1.ListCheckpointsRequest{}
	all, err := call(ctx, c, c.options.CallTimeout, c.service.ListCheckpoints, request, doing)
	if err != nil {
		return nil, err
	}
	token := all.NextPageToken
	all.NextPageToken = ""
	return all, paged(ctx, c, token, doing, func(ctx context.Context, token string) (string, error) {
		request.PageToken = token
		page, err := call(ctx, c, c.options.CallTimeout, c.service.ListCheckpoints, request, doing)
		all.Checkpoints = append(all.Checkpoints, page.GetCheckpoints()...)
		return page.GetNextPageToken(), err
	})
}

// Inspect calls `page` with each page of what the daemon reads of a source. Files and metadata come
// with the first.
func (c *Client) Inspect(ctx context.Context, source string, page func(*v1.InspectCheckpointResponse) error) error {
	doing, request, identity := "inspecting "+source, &v1.InspectCheckpointRequest{Source: SourceText(source)}, ""
	next := func(ctx context.Context, token string) (string, error) {
		request.PageToken = token
		found, err := call(ctx, c, c.options.CallTimeout, c.service.InspectCheckpoint, request, doing)
		if err != nil {
			return "", err
		}
		if identity == "" {
			identity = found.GetSourceIdentity()
		}
		if found.GetSourceIdentity() != identity {
			return "", sourceChanged(doing)
		}
		return found.GetNextPageToken(), page(found)
	}
	token, err := next(ctx, "")
	if err != nil {
		return err
	}
	return paged(ctx, c, token, doing, next)
}

// Plan is a dry run of a load.
func (c *Client) Plan(ctx context.Context, spec *v1.LoadSpec) (*v1.PlanLoadResponse, error) {
	spec = sendable(spec)
	return call(ctx, c, c.options.CallTimeout, c.service.PlanLoad, &v1.PlanLoadRequest{Spec: spec}, "planning a load of "+spec.Source)
}

// Verify has the daemon compute the digests of its shard again. Digests of what this process has
// mapped are computed by the package ckptd/digest.
func (c *Client) Verify(ctx context.Context, name string) (*v1.VerifyCheckpointResponse, error) {
	return call(ctx, c, verifyTimeout, c.service.VerifyCheckpoint, &v1.VerifyCheckpointRequest{Name: name}, "verifying "+name)
}

// Release ends a lease whose token will not be used. A Shard ends its own lease when it is closed.
func (c *Client) Release(ctx context.Context, lease string) error {
	_, err := call(ctx, c, time.Second, c.service.ReleaseShard, &v1.ReleaseShardRequest{Lease: lease}, "releasing "+lease)
	return err
}
