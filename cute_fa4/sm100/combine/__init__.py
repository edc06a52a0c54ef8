"""The kernel that merges partial results of split keys by their log-sum-exp; it uses no tensor core."""
