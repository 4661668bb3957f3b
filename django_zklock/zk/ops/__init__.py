"""Operations on the locks of other processes: find, show, revoke, break and prune them."""
