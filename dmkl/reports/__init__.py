"""Reports: one page of HTML that tells what was asked, what was found, how sure it is, and how to do it again."""
