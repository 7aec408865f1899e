"""Why a draft accepts too little: each cause is tried, and the one that restores it is named."""
